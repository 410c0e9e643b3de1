"""The DASH paper's closed forms, through `rota plan` and the shipped schedules.

    python3 tests/paper_forms.py build/rota              check n = 4 .. 128, several m, c, r
    python3 tests/paper_forms.py build/rota --markdown   the table of docs/schedules.md

n kv tiles and query tiles a head, m heads, n workers (n / 2 too for symmetric shift), a visit of c
and a reduction of r, hand-offs free. Exit status 1 if a makespan is not the paper's.
"""

import json
import subprocess
import sys

SIZES = [4, 5, 6, 7, 8, 12, 16, 31, 32, 64, 127, 128]
TIMES = [(2, 1), (1, 1), (5, 3), (2.5, 0.125), (1, 0)]


def command(rota, mask, n, m, workers, c, r, schedule):
    model = f"return rota.attention{{head_dim = 128, heads = {m}, mask = {mask}}}"
    return [
        rota, "plan", "-e", model, "--tiles", f"{n}x{n}", "--workers", str(workers),
        "--costs", f"c={c},r={r},handoff=0", "--schedule", schedule, "--json",
    ]  # fmt: skip


def forms(n, m, c, r):
    """(schedule, mask, workers, makespan by the paper, whether it is the optimum)"""
    work = m * n * (c + r)
    half = m * (n + 1) * (c + r) / 2
    yield "ascending", "full", n, work + (n - 1) * r, False
    yield "ascending", "causal", n, work + (n - 1) * r, False
    if m % 2 == 0 and c >= r:
        yield "descending", "causal", n, half + (n - 1) * r, False
    yield "shift", "full", n, work, True
    if n % 2 == 0:
        yield "symmetric_shift", "causal", n // 2, 2 * half, True
        if m % 2 == 0:
            yield "symmetric_shift", "causal", n, half, True


def run(arguments):
    result = subprocess.run(arguments, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(arguments)}: {result.stderr}")
    return json.loads(result.stdout)[0]


def agrees(plan, makespan, optimum):
    if abs(plan["makespan"] - makespan) > 1e-9:
        return False
    return not optimum or (
        plan["depth_monotone"] and plan["bound_ratio"] == 1 and plan["stall_share"] == 0
    )


def check(rota):
    count = wrong = 0
    for i, n in enumerate(SIZES):
        for m in (1, 2, 3, 4):
            c, r = TIMES[(i + m) % len(TIMES)]
            for schedule, mask, workers, makespan, optimum in forms(n, m, c, r):
                plan = run(command(rota, mask, n, m, workers, c, r, schedule))
                count += 1
                if not agrees(plan, makespan, optimum):
                    wrong += 1
                    print(f"{schedule} {mask} n {n} m {m} workers {workers} c {c} r {r}: "
                          f"{plan['makespan']}, the paper says {makespan}; {plan}")  # fmt: skip
    print(f"{count - wrong} of {count} makespans as in the paper")
    return wrong == 0


def table(rota):
    print("| schedule | mask | workers | makespan | the paper's | work bound | critical path "
          "| idle | monotone |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    n, m, c, r = 16, 4, 2, 1
    for schedule, mask, workers, makespan, _ in forms(n, m, c, r):
        plan = run(command(rota, mask, n, m, workers, c, r, schedule))
        print(f"| {schedule} | {mask} | {workers} | {plan['makespan']:g} | {makespan:g} "
              f"| {plan['work_bound']:g} | {plan['critical_path']:g} "
              f"| {100 * plan['stall_share']:.1f} % "
              f"| {'yes' if plan['depth_monotone'] else 'no'} |")  # fmt: skip
    return True


if __name__ == "__main__":
    sys.exit(0 if (table if "--markdown" in sys.argv else check)(sys.argv[1]) else 1)
