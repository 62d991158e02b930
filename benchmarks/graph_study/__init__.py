"""`make graph-study`: graph policies that choose the switches of a feeder, held against every radial topology.

    python -m benchmarks.graph_study                 # every cell that has no result yet, then the page's tables
    python -m benchmarks.graph_study optimum         # one cell
    python -m benchmarks.graph_study --table         # the tables of docs/graphs.md from the results alone

Four cells. `optimum`: policies of 33 buses, learned from the logs of a dispatcher who errs, on loads whose 50,751
topologies are all solved, and with lines out of service of which no log tells. `transfer`: the same weights tuned on
118 buses, beside ones that begin there. `speed`: microseconds of a decision, from the observation to the open lines, by
size on one core. `agents`: units of the feeder that see their own part and talk over links that are lost, beside the
tuned controller and the optimal flow. Each finished cell is a file in benchmarks/results/graph.
"""
