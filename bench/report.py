"""What the benchmarks' output files have in common."""

import contextlib
import datetime
import os

import torch


@contextlib.contextmanager
def csv_lines(path, about):
    """write(line), to standard output and to a new file, each line as soon as it is known. The
    first says the device, the date, versions and what it is `about`."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:

        def write(line):
            print(line, flush=True)
            print(line, file=file, flush=True)

        write(
            f"# {torch.cuda.get_device_name()}, {datetime.date.today()}, torch "
            f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}; {about}"
        )
        yield write
