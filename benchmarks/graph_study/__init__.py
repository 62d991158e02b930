"""`make graph-study`: graph policies that switch the lines of a feeder, compared with every radial topology.

    python -m benchmarks.graph_study                 # every cell without a result, then the page
    python -m benchmarks.graph_study optimum         # one cell
    python -m benchmarks.graph_study --page          # docs/studies/graphs.md from the kept results

Four cells, kept in benchmarks/results/graph:

- `optimum`: train policies for 33 buses on the logs of an imperfect dispatcher. Compare them with all 50,751 topologies
  for each load, also during outages that are in no log.
- `transfer`: train the weights of 33 buses further on 118 buses. Compare with training from scratch.
- `speed`: measure the time of a decision on one core, by size of the feeder.
- `agents`: train agents that see their own part of the feeder and exchange messages over links that may fail. Compare
  them with the tuned controller and the optimal flow.
"""
