"""``python -m tests.local.stand_in_trainer``: the trainer with ``stand_in``'s program, everything else as it is."""

from typing import Any, NoReturn

from trainer import train
from trainer.launch import Launch


def load_story() -> train.RunAttempt:
    from tests.local.stand_in import StandIn
    from trainer import attempt

    def compile_program(launch: Launch, devices: Any) -> Any:
        program = StandIn(launch.recipe.model, launch.stage, devices)
        program.compile()
        return program

    attempt.compile_program = compile_program
    return attempt.run_attempt


def main() -> NoReturn:
    train.main(load_story)


if __name__ == "__main__":
    main()
