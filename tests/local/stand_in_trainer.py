"""``python -m tests.local.stand_in_trainer``: the trainer with ``stand_in``'s program, everything else as it is."""

from typing import Any, NoReturn

from trainer import train
from trainer.parallel.plan import StepPlan


def load_story() -> train.RunAttempt:
    from tests.local.stand_in import StandIn
    from trainer import attempt, compile_cache

    def build_program(plan: StepPlan, devices: Any) -> Any:
        return StandIn(plan.model, plan.stage, devices)

    compile_cache.build_program = build_program
    return attempt.run_attempt


def main() -> NoReturn:
    train.main(load_story)


if __name__ == "__main__":
    main()
