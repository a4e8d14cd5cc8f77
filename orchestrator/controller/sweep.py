"""Retention's effects: the event, then the tombstone, then the data. Only the controller deletes."""

from orchestrator.planner.decision import Decision, Facts
from orchestrator.planner.history import History
from orchestrator.planner.retention import Kept, expendable
from orchestrator.store.run_store import RunStore


class Sweeper:
    """Deletes the data of checkpoints that no rule keeps."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._looked_at: object = None
        self._finished: frozenset[str] = frozenset()

    def decision(self, facts: Facts) -> Decision | None:
        """The deletion that is due; None when there is none. Looks only when head or the proofs changed."""
        seen = facts.seen
        if seen.head.revision != facts.history.revision:
            return None  # head was seen before a new revision moved it: what is needed now looks unneeded
        state = (seen.head.manifest, sum(view.proven for view in seen.checkpoints), facts.history.attempt)
        if state == self._looked_at:
            return None
        self._looked_at = state
        names = self._expendable(facts)
        if not names:
            return None
        return Decision(
            kind="deleted",
            message=f"deleted by retention: checkpoints {', '.join(names)}",
            cause="retention",
            details={"manifests": list(names)},
        )

    def delete(self, decision: Decision) -> None:
        """Tombstones first, so that nobody tries to restore what is half deleted."""
        for name in decision.details["manifests"]:
            self._delete(name)

    def finish(self, history: History) -> None:
        """Delete what was given up by a controller that died before it deleted. Looks only when the log has more."""
        if history.deleted == self._finished:
            return
        there, marked = set(self._store.checkpoint_folders()), self._store.tombstones()
        for name in sorted(history.deleted - self._finished):
            if f"checkpoints/{name}" in there or name not in marked:
                self._delete(name)
        self._finished = history.deleted

    def _delete(self, name: str) -> None:
        self._store.create_tombstone(name)
        self._store.delete_checkpoint(f"checkpoints/{name}")

    def _expendable(self, facts: Facts) -> tuple[str, ...]:
        seen, history = facts.seen, facts.history
        reachable = {view.manifest: view for view in seen.checkpoints}
        quarantined, proven = self._store.quarantined(), self._store.proven_names()
        there = []
        for name in self._store.manifest_names():
            if name in history.deleted:
                continue
            view = reachable.get(name)
            lost_but_proven = view is None and name in proven
            revision = self._store.manifest(name).revision if lost_but_proven else history.revision
            step, _, attempt = name.partition("-a")
            there.append(
                Kept(
                    manifest=name,
                    next_step=int(step),
                    attempt=int(attempt),
                    proven=lost_but_proven if view is None else view.proven,
                    reachable=view is not None,
                    quarantined=name in quarantined,
                    left_by=revision if revision < history.revision else None,
                )
            )
        in_use = {history.launch.resume} if history.launch is not None and history.launch.resume else set()
        if seen.head.manifest is not None:
            in_use.add(seen.head.manifest)
        return expendable(
            there,
            policy=facts.policy.checkpoint,
            recipe=facts.recipe,
            pins=self._store.pins(),
            in_use=in_use,
            current_attempt=history.attempt,
        )
