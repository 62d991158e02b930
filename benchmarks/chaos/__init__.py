"""`make chaos`: faults of every kind in the middle of retrainings, and what they leave behind.

    python -m benchmarks.chaos                              # 200 faults, or as many as three hours allow
    python -m benchmarks.chaos --faults 20 --hours 0.5      # goes on where an earlier run of the campaign stopped

Two homes side by side, each with real servers, signer and witness: one machine's, and a team's whose state lies in
PostgreSQL on another host, which is a network namespace where this machine may have one. Each trial retrains with a
seed of its own, so that there is something to do, and is struck once, at a moment drawn uniformly from what an
undisturbed run takes: kind and moment follow from the number of the trial. Afterwards what was broken is put right,
as an operator would, and the same retraining is run again. Whatever happened: a process that was not killed itself
ends with a sentence, the second run decides, the ledger and all that it names verify, there is one champion at
most, its certificate holds, and no dataset is lost. Then two promoters race a hundred times.

Keeps benchmarks/results/chaos and makes docs/studies/chaos.md of it.
"""
