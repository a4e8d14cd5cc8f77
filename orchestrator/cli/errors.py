"""How a command fails: one line that names the remedy, and an exit code that says of which kind it is.

0    done; for a command that tests something: and it held
1    looked, and what was asked does not hold: verify differs, a request was refused, a run is not as submitted
2    the input is wrong: arguments, a file's field, an unknown run; nothing was changed
3    cannot know or act now: the store or the fleet does not answer; the same command may succeed later
130  interrupted at the keyboard
"""

import click

from orchestrator.contract.text import one_line

DOES_NOT_HOLD = 1
BAD_INPUT = 2
UNREACHABLE = 3
INTERRUPTED = 130


class CommandError(click.ClickException):
    """An error for a person."""

    exit_code = BAD_INPUT

    def format_message(self) -> str:
        return one_line(self.message)


class BadInput(CommandError):
    """Arguments or files are wrong; nothing was changed."""


class DoesNotHold(CommandError):
    """What was asked was looked at and does not hold."""

    exit_code = DOES_NOT_HOLD


class Unreachable(CommandError):
    """The store or the fleet does not answer, or nobody answered in time."""

    exit_code = UNREACHABLE


def explained(error: Exception) -> CommandError | None:
    """What Everstep's own layers raise, as an error for a person; None for anything else, which is a bug."""
    # late, because a command that fails in its arguments needs none of these
    from orchestrator.contract.base import ContractError
    from orchestrator.fleet.backend import BackendUnavailable
    from orchestrator.store.objects import Conflict, NotFound, StoreError

    match error:
        case ContractError() | NotFound():
            return BadInput(str(error))
        case Conflict():
            return DoesNotHold(f"{error}; look again, then repeat the command")
        case StoreError() | BackendUnavailable():
            return Unreachable(str(error))
        case _:
            return None


def message_of(error: click.ClickException) -> str:
    """The line that is printed, without a leading ``everstep:``."""
    text = one_line(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text.removesuffix('.')}; see `{error.ctx.command_path} --help`"
    return text
