"""Runs a benchmark's child process under Nsight Compute."""

import subprocess
import sys


def profiled(options, script, child, library):
    """ncu's CSV, from its header on, of what `script` runs between profiler marks.

    options: ncu's choice of metrics or sections; child: the script's own arguments. Caches and
    clocks are left as they are. Ends the program with ncu's words where it fails.
    """
    command = ["ncu", "--csv", "--profile-from-start", "off", "--print-units", "base"]
    command += ["--cache-control", "none", "--clock-control", "none", *options]
    command += [sys.executable, script, *child]
    if library:
        command += ["--library", library]
    result = subprocess.run(command, capture_output=True, text=True)
    begin = result.stdout.find('"ID"')
    if result.returncode or begin < 0:
        sys.exit(f"ncu {' '.join(child)}: {(result.stdout + result.stderr)[-2000:]}")
    return result.stdout[begin:]
