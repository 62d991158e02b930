"""`make chaos`: cause faults during retrainings, and check the state of the home afterwards.

    python -m benchmarks.chaos                              # 200 faults, or as many as three hours allow
    python -m benchmarks.chaos --faults 20 --hours 0.5      # fewer; continues an earlier campaign
    python -m benchmarks.chaos --page                       # docs/studies/chaos.md from the kept results

Two homes run side by side with real servers, signer and witness. One has all state in a folder; the other has its state
in PostgreSQL on another host (a network namespace if this machine allows one). Each trial starts a retraining with its
own seed and causes one fault. The number of the trial determines the kind of fault and its moment, which is uniform
over the duration of an undisturbed run. The trial then repairs the fault as an operator would, retrains again, and
checks for the violations that docs/studies/chaos.md lists. After the trials, two processes approve two candidates at
the same time, a hundred times. Results are kept in benchmarks/results/chaos.
"""
