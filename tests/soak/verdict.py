"""One sentence about a soak, whether it holds, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``holds`` is None where it could not be looked at; ``found`` says what was measured."""

    name: str
    holds: bool | None
    count: int = 0
    examples: tuple[str, ...] = ()
    found: str = ""

    def line(self) -> str:
        """For a person: one line, and the first examples below it."""
        word = {True: "holds", False: "DOES NOT HOLD", None: "not looked at"}[self.holds]
        text = f"{word}: {self.name}" + (f" ({self.found})" if self.found else "")
        shown = [f"\n    {example}" for example in self.examples[:5]]
        left = self.count - len(shown)
        return text + "".join(shown) + (f"\n    and {left} more" if shown and left > 0 else "")


def verdict(name: str, against: list[str], found: str = "") -> Verdict:
    """Holds if nothing speaks against it."""
    return Verdict(
        name=name,
        holds=not against,
        count=len(against),
        examples=tuple(against[:MOST_EXAMPLES]),
        found=found,
    )
