"""`make fleet-study`: twenty similar reactors learn alone, together and federated.

    python -m benchmarks.fleet_study                       # every cell without a result
    python -m benchmarks.fleet_study fedavg pooled --episodes 20
    python -m benchmarks.fleet_study --page                # docs/studies/fleet.md from the kept results

A cell is a method and a number of logged episodes per site. Sites are reactors with k0 and UA within 3 % of the nominal
values; each logs episodes of the medium controller. Policies are scored by rollouts on the twenty training sites and on
twenty new ones. Cells are kept in benchmarks/results/fleet; a study that was stopped continues with the missing cells.
"""
