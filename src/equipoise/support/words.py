"""Words for people: lists, numbers, times and suggestions, without torch."""

from __future__ import annotations

__all__ = ["FEW_PAIRS", "STAYS", "counted", "did_you_mean", "duration", "listed", "roughly", "shown"]

import difflib
from collections.abc import Iterable
from typing import Any

#: Below this many pairs the curve varies too much for a projection: it is then reported as a lower bound.
FEW_PAIRS = 500
#: What every projection supposes.
STAYS = "if the curve stays as it is"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def listed(names: Iterable[str], most: int | None = None) -> str:
    """Names in a sentence, the first `most` of them.

    Example:
        >>> listed(["0"]), listed(["0", "1", "mixture"]), listed("abcd", most=2), listed([])
        ('0', '0, 1 and mixture', 'a, b and 2 more', 'none')
    """
    names = list(names)
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "none"


def shown(value: Any, most: int = 80) -> str:
    """What somebody gave, in at most about so many characters, whatever it is.

    Example:
        >>> shown("x"), shown("x" * 100, most=10), shown(10**5000)
        ("'x'", "'xxxxxxxxx…", 'a number of more than 4,000 digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no longer numbers
        return "a number of more than 4,000 digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}…"


def counted(n: int, one: str, many: str | None = None) -> str:
    """The number with its noun.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(12, "network"), counted(0, "run")
        ('one run', 'two runs', '12 networks', 'no runs')
    """
    number = NUMBERS[n] if n < len(NUMBERS) else f"{n:,}"
    return f"{number} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> duration(5), duration(125), duration(7300), duration(119.7)
        ('5 s', '2:05 min', '2:01 h', '2:00 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


def roughly(more: float, pairs: int | None) -> str:
    """How many more pairs would settle a verdict, to two digits; a lower bound where it is projected from few pairs.

    Example:
        >>> roughly(1234.0, 1000), roughly(87.0, 300)
        ('about 1,200', 'at least about 87')
    """
    least = "at least " if pairs is not None and pairs < FEW_PAIRS else ""
    return f"{least}about {float(f'{more:.2g}'):,.0f}"


def did_you_mean(word: object, words: Iterable[str], what: str) -> str:
    """A sentence for an unknown name: the nearest known one, and all of them.

    Example:
        >>> did_you_mean("bugdets", ["budgets", "runs"], "key")
        "there is no key 'bugdets'; did you mean 'budgets'? There are budgets, runs."
        >>> did_you_mean("colour", ["budgets", "runs"], "key")
        "there is no key 'colour'. There are budgets, runs."
    """
    known, word = list(words), word[:80] if isinstance(word, str) else word
    close = difflib.get_close_matches(str(word).lower().replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"there is no {what} {word!r}{hint} There are {', '.join(known)}."
