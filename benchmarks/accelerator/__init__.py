"""`make bench-accelerator`: train large populations on this machine's accelerator, or on the CPU if there is none.

    python -m benchmarks.accelerator                         # every result that this device lacks
    python -m benchmarks.accelerator --parts speed           # one of the two parts
    python -m benchmarks.accelerator --page                  # docs/studies/accelerators.md from the kept results

Two parts: gradient steps per second of populations from one member to a thousand, and whole trainings with every member
scored in the simulator. Each part uses float32 and, on an accelerator, bfloat16. benchmarks/results/accelerator.json
has one record per device and is written after every measurement, so that a stopped run continues. Results of another
commit are measured again.

Needs only the core and psutil, because a machine with an accelerator often has no other packages. `--commit` names the
sources' commit if they are a copy without a repository.
"""
