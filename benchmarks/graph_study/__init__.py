"""`make graph-study`: graph policies that switch the lines of a feeder, compared with every radial topology.

    python -m benchmarks.graph_study                 # every cell without a result, then the page
    python -m benchmarks.graph_study optimum         # one cell
    python -m benchmarks.graph_study --page          # docs/studies/graphs.md from the kept results

Four cells, kept in benchmarks/results/graph:

- `optimum`: policies for 33 buses, learned from the logs of an imperfect dispatcher, compared with all 50,751
  topologies on each load, and with outages that are in no log.
- `transfer`: the same weights tuned on 118 buses, compared with training from scratch.
- `speed`: time of a decision on one core, by size of the feeder.
- `agents`: units that see their own part and exchange messages over lossy links, compared with the tuned controller and
  the optimal flow.
"""
