"""Make tests/golden/torch.npz: outputs of torch.nn.GRU, with a Python that has torch.

    PYTHON benchmarks/peers/golden_torch.py

For development only; requires torch 2.13.0. Torch has the gates reset, update and candidate with two biases each.
NeoRL's GRU has a state bias in the candidate only, so the other state biases are zero here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "torch.npz"
READ, UNITS, STEPS, ROWS = 3, 5, 4, 6


def main() -> None:
    torch.manual_seed(0)
    unit = torch.nn.GRU(READ, UNITS)
    with torch.no_grad():
        for weight in unit.parameters():
            weight.normal_()
        unit.bias_hh_l0[: 2 * UNITS] = 0.0
        given = torch.randn(STEPS, ROWS, READ)
        state = unit(given)[1][0]
        arrays = {
            "given": given,
            "state": state,
            "input_kernel": unit.weight_ih_l0.T,
            "input_bias": unit.bias_ih_l0,
            "state_kernel": unit.weight_hh_l0.T,
            "state_bias": unit.bias_hh_l0[2 * UNITS :],
        }
    np.savez(OUT, **{name: value.detach().numpy() for name, value in arrays.items()})


if __name__ == "__main__":
    main()
