"""Facts that are recorded when they are first seen: they change later decisions and belong in the log."""

from orchestrator.planner.decision import Decision, Facts


def noticed(facts: Facts) -> Decision | None:
    """The first fact that the log does not have yet."""
    rows = (_first_new_step, _proven, _quarantined, _save_failed, _skipped, _host_is_back)
    return next((decision for row in rows if (decision := row(facts)) is not None), None)


def _first_new_step(facts: Facts) -> Decision | None:
    attempt, history = facts.seen.attempt, facts.history
    if attempt is None or history.launch is None or history.first_new_step or history.ended:
        return None
    times = [process.progress.first_new_step_at for process in attempt.processes if process.progress is not None]
    first = min((at for at in times if at is not None), default=None)
    if first is None:
        return None
    message = f"a{attempt.number} took its first new step on {attempt.placement.name}"
    return Decision(
        kind="first-new-step", message=message, cause=history.launch_cause, details={"first_new_step_at": first}
    )


def _proven(facts: Facts) -> Decision | None:
    names = [
        view.manifest for view in facts.seen.checkpoints if view.proven and view.manifest not in facts.history.proven
    ]
    if not names:
        return None
    return Decision(
        kind="proven",
        message=f"checkpoint {', '.join(names)} was read back with equal checksums: proven",
        details={"manifests": names},
    )


def _quarantined(facts: Facts) -> Decision | None:
    known = facts.history.quarantined
    names = [view.manifest for view in facts.seen.checkpoints if view.quarantined and view.manifest not in known]
    if not names:
        return None
    return Decision(
        kind="quarantined",
        message=f"checkpoint {', '.join(names)} failed its checks and is not tried again",
        details={"manifests": names},
    )


def _host_is_back(facts: Facts) -> Decision | None:
    """A statement that a host is gone holds until the host is seen again."""
    gone = facts.history.declared_gone
    if not gone:
        return None
    for ref in (host.ref for host in facts.seen.hosts if host.condition == "ready"):
        if str(ref) in gone:
            message = f"{ref}, which was stated to be gone, is back"
            return Decision(kind="alert", message=message, details={"key": f"back-{ref}", "host_back": str(ref)})
    return None


def _skipped(facts: Facts) -> Decision | None:
    """Once a step, however often it is replayed."""
    attempt = facts.seen.attempt
    if attempt is None or facts.history.ended:
        return None
    reports = [process.progress.skipped for process in attempt.processes if process.progress is not None]
    steps = sorted({step for report in reports for step in report if step > facts.history.newest_skipped})
    if not steps:
        return None
    which = f"step {steps[0]:,} was" if len(steps) == 1 else f"steps {', '.join(f'{step:,}' for step in steps)} were"
    return Decision(
        kind="skipped-step",
        message=f"{which} skipped by a{attempt.number}: loss or gradient norm far above the last ones; not applied",
        details={"steps": steps},
    )


def _save_failed(facts: Facts) -> Decision | None:
    attempt = facts.seen.attempt
    if attempt is None or facts.history.ended:
        return None
    failing = [process.progress for process in attempt.processes if process.progress is not None]
    worst = max(failing, key=lambda progress: progress.save_failures, default=None)
    if worst is None or worst.save_failures <= facts.history.save_failures:
        return None
    return Decision(
        kind="save-failed",
        message=(
            f"a save of a{attempt.number} failed ({worst.save_error}); training goes on, the next interval tries again"
        ),
        cause="save-failed",
        details={"count": worst.save_failures},
    )
