"""Gauss–Legendre rules, plain and with clustered ends, as float64 tensors."""

from __future__ import annotations

__all__ = ["clustered", "legendre"]

import math

import numpy as np
import torch
from torch import Tensor


def legendre(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Nodes and weights with shape `(n,)` of the n-point rule on [0, 1].

    Example:
        >>> node, weight = legendre(5)
        >>> round(float((weight * node**9).sum()), 12)
        0.1
    """
    node, weight = np.polynomial.legendre.leggauss(n)
    return torch.tensor((node + 1) / 2, device=device), torch.tensor(weight / 2, device=device)


def clustered(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    r"""A rule on [0, 1], accurate for \(\sqrt{t}\) and \(\sqrt{1-t}\) at the ends: t = (1 - cos πs)/2, s Legendre.

    Example:
        >>> node, weight = clustered(16)
        >>> round(float((weight * (node * (1 - node)).sqrt()).sum()) * 8 / math.pi, 12)
        1.0
    """
    s, weight = legendre(n, device)
    return (1 - (math.pi * s).cos()) / 2, weight * math.pi / 2 * (math.pi * s).sin()
