"""`make chaos`: strike retrainings with faults of every kind, and check the state that they leave.

    python -m benchmarks.chaos                              # 200 faults, or as many as three hours allow
    python -m benchmarks.chaos --faults 20 --hours 0.5      # fewer; continues an earlier campaign
    python -m benchmarks.chaos --page                       # docs/studies/chaos.md from the kept results

Two homes run side by side with real servers, signer and witness: one machine's, and a team's with its state in
PostgreSQL on another host (a network namespace if this machine allows one). Each trial retrains with a seed of its own
and is struck once, at a moment drawn uniformly from the duration of an undisturbed run; the number of the trial
determines fault and moment. Afterwards the fault is repaired as an operator would, and the same retraining runs again.
Checked: a process that was not killed ends with a message, the second run decides, the ledger and all files verify,
there is at most one champion and it passed every gate, and no dataset is lost. Then two approvals race a hundred times.
Results are kept in benchmarks/results/chaos.
"""
