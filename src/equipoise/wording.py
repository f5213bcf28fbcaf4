"""Words that diagnostics and the report share, without torch."""

from __future__ import annotations

__all__ = ["FEW_PAIRS", "STAYS", "listed", "roughly"]

from collections.abc import Sequence

#: From fewer pairs than this the curve moves too much for a projection of it: it is then told as the least.
FEW_PAIRS = 500
#: What every projection supposes.
STAYS = "if the curve stays as it is"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> listed(["0"]), listed(["0", "1", "mixture"])
        ('0', '0, 1 and mixture')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def roughly(more: float, pairs: int | None) -> str:
    """How many more pairs would settle a verdict, to two digits: as firmly as a projection from `pairs` can be told.

    Example:
        >>> roughly(1234.0, 1000), roughly(87.0, 300)
        ('about 1,200', 'at least about 87')
    """
    least = "at least " if pairs is not None and pairs < FEW_PAIRS else ""
    return f"{least}about {float(f'{more:.2g}'):,.0f}"
