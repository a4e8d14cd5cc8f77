"""``everstep``: one command line for a run's whole life.

Commands are imported when they are called, so that ``everstep --help`` and completion are quick.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import click

from orchestrator.cli.errors import INTERRUPTED, explained, message_of

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "init": ("init:init", "Write an example that works on this machine."),
        "recipe": ("recipe:recipe", "What a recipe will do; the recipes that come with Everstep."),
        "data": ("data:data", "Token files of text; the order of their samples."),
        "plan": ("plan:plan", "Which placement can run what, and what it needs."),
        "submit": ("submit:submit", "Check a run.yaml and start its run."),
        "controller": ("run_controller:controller", "Lead a run from this terminal."),
        "demo": ("demo:demo", "A run that survives five disturbances, and its certificate."),
    },
    "Look": {
        "status": ("look:status", "Where runs are."),
        "why": ("look:why", "The newest decisions, and what they were made from."),
        "events": ("look:events", "The whole log of decisions and facts."),
        "logs": ("logs:logs", "Last lines of trainers, the first failing host first."),
        "fleet": ("fleet:fleet", "Hosts, their condition and what is known of it."),
        "decide": ("decide:decide", "What would be decided now."),
        "doctor": ("doctor:doctor", "Whether installation, store and fleet can carry a run."),
    },
    "Ask": {
        "drain": ("people:drain", "Save, leave, and launch again."),
        "move": ("people:move", "Drain, and go on on another placement."),
        "pause": ("people:pause", "Drain, and give the hosts back."),
        "hold": ("people:hold", "Only watch this run until it is resumed."),
        "resume": ("people:resume", "Go on with a held, paused or stopped run."),
        "stop": ("people:stop", "End this run; it can be resumed."),
        "host-gone": ("people:host_gone", "State that a host is gone for good."),
        "amend": ("revise:amend", "Go on with a changed recipe, as a new revision."),
        "rewind": ("revise:rewind", "Go on from an earlier checkpoint, as a new revision."),
        "pin": ("pin:pin", "Keep a checkpoint for good."),
        "profile": ("profile:profile", "Trace some steps of a live run."),
        "policy": ("policy:policy", "Show what may change on a live run, or replace it."),
    },
    "Prove": {
        "verify": ("prove:verify", "Compare everything that was computed twice, bit for bit."),
        "certificate": ("prove:certificate", "What was shown of a run, claim by claim."),
        "goodput": ("prove:goodput", "Where the time of a run went."),
        "episodes": ("prove:episodes", "What each disturbance cost."),
        "export": ("export:export", "The merged loss curve as CSV or TensorBoard events."),
        "scrub": ("scrub:scrub", "Read a checkpoint back from the store."),
    },
    "Try": {
        "drill": ("drill:drill", "Disturb a local fleet on purpose."),
        "schemas": ("schemas:schemas", "The JSON Schemas of all documents."),
    },
}
"""Every command by the heading under which it is listed: ``module:attribute`` below orchestrator.cli, and its help."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def trainer_commands() -> dict[str, EntryPoint]:
    """Those that an installed trainer adds, by name."""
    return {found.name: found for found in entry_points(group="everstep.commands") if found.name not in COMMANDS}


class EverstepGroup(click.Group):
    """The commands of ``SECTIONS`` and of the trainer; errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *trainer_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            found = getattr(importlib.import_module(f"orchestrator.cli.{module}"), attribute)
        elif cmd_name in (added := trainer_commands()):
            found = added[cmd_name].load()
        else:
            return None
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # what is installed is looked through only for a name that is not one of ours
        if args[0] in COMMANDS or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        known = self.list_commands(ctx)
        if args[0] not in known:
            close = difflib.get_close_matches(args[0], known, n=1)
            raise click.UsageError(f"no command {args[0]!r}" + (f", did you mean {close[0]!r}?" if close else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, section in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()], col_max=14)
        added = {name: self.get_command(ctx, name) for name in trainer_commands()}
        if added:
            with formatter.section("Of the trainer"):
                texts = [(name, command.get_short_help_str(90)) for name, command in added.items() if command]
                formatter.write_dl(texts, col_max=14)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            shown = None if ctx.params["debug"] or isinstance(error, click.ClickException) else explained(error)
            if shown is None:
                raise
            raise shown from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            code = super().main(args, prog_name or "everstep", complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            click.echo(f"everstep: {message_of(error)}", err=True)
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("everstep: interrupted", err=True)
            code = INTERRUPTED
        except BrokenPipeError:
            _forget_output()
            code = 0
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    "everstep", cls=EverstepGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="everstep", message="everstep %(version)s")
@click.option("--debug", is_flag=True, envvar="EVERSTEP_DEBUG", help="Show the stack trace of an error.")
def main(debug: bool) -> None:
    """Keeps one training run going, unchanged, through everything that happens to its hardware, and proves it.

    \b
    Examples:
      everstep init example && cd example     an example that works
      everstep submit run.yaml --watch        check it, start it, watch it
      everstep why example                    what was decided, and from what

    Exit codes: 0 done, 1 it does not hold, 2 wrong input, 3 store or fleet unreachable, 130 interrupted.
    """


def _forget_output() -> None:
    """The reader of a pipe has left; keep the interpreter from complaining about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
