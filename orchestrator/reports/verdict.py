"""From what was counted to a verdict and one sentence, which claims no more than was compared."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.reports.tally import Difference
from orchestrator.reports.tokens import TokenDifference

Verdict = Literal["equal", "bounded", "differs", "nothing-replayed", "incomplete"]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The counts that decide."""

    replayed_steps: int
    steps_differing: int
    steps_bounded: int
    max_abs_delta_loss: float | None
    first_difference: Difference | None
    witnesses_differing: int
    recipe_problems: int
    tokens_differing: int
    first_token_difference: TokenDifference | None
    missing_steps: int
    lost_segments: int

    @property
    def verdict(self) -> Verdict:
        """The worst that was found: differs, incomplete, nothing-replayed, bounded, equal."""
        if self.steps_differing or self.witnesses_differing or self.recipe_problems or self.tokens_differing:
            return "differs"
        if self.missing_steps or self.lost_segments:
            return "incomplete"
        if not self.replayed_steps:
            return "nothing-replayed"
        return "bounded" if self.steps_bounded else "equal"

    @property
    def sentence(self) -> str:
        """What was shown, and what stands against it."""
        against = self._against()
        return f"{self._replays()}; but {', '.join(against)}" if against else self._replays()

    def _replays(self) -> str:
        if not self.replayed_steps:
            return "no step was computed twice, so nothing is shown about replays"
        steps = counted(self.replayed_steps, "step was computed more than once", "steps were computed more than once")
        equal = self.replayed_steps - self.steps_differing - self.steps_bounded
        if equal == self.replayed_steps:
            return f"{steps}, and every bit of every record of them is equal (Δ = 0)"
        parts = [f"{equal:,} of them equal in every bit"]
        if self.steps_bounded:
            parts.append(f"{self.steps_bounded:,} equal only within the bound asked for (fingerprints differ)")
        largest = "is not a number" if self.max_abs_delta_loss is None else f"= {self.max_abs_delta_loss:.3g}"
        return f"{steps}, {', '.join(parts)}; largest |Δ loss| {largest}"

    def _against(self) -> list[str]:
        found = []
        if (first := self.first_difference) is not None:
            count = counted(self.steps_differing, "replayed step differs", "replayed steps differ")
            found.append(
                f"{count}, the first at step {first.step:,}: attempt {first.attempt} against attempt "
                f"{first.first_attempt} in {', '.join(first.fields)}"
            )
        if self.witnesses_differing:
            found.append(
                counted(self.witnesses_differing, "checkpoint differs", "checkpoints differ") + " from a witness"
            )
        if self.recipe_problems:
            found.append(counted(self.recipe_problems, "recipe hash is", "recipe hashes are") + " not the revision's")
        if (other := self.first_token_difference) is not None:
            found.append(
                counted(self.tokens_differing, "step", "steps") + " read other tokens than the recipe says, the first "
                f"at step {other.step:,} by the loader of attempt {other.attempt}"
            )
        if self.missing_steps:
            found.append(counted(self.missing_steps, "committed step has", "committed steps have") + " no record")
        if self.lost_segments:
            found.append(
                counted(self.lost_segments, "ledger segment is", "ledger segments are")
                + " gone that a replay was held to"
            )
        return found


def counted(number: int, one: str, many: str) -> str:
    """``1 step`` or ``2 steps``."""
    return f"{number:,} {one if number == 1 else many}"
