"""Retention's effects: the event, then the tombstone, then the data. Only the controller deletes."""

from orchestrator.planner.decision import Decision, Facts
from orchestrator.planner.retention import Kept, expendable
from orchestrator.store.run_store import RunStore


class Sweeper:
    """Deletes the data of checkpoints that no rule keeps."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._looked_at: object = None
        self._finished = False

    def decision(self, facts: Facts) -> Decision | None:
        """The deletion that is due; None when there is none. Looks only when head or the proofs changed."""
        seen = facts.seen
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

    def finish(self) -> None:
        """Once a controller's life: data whose tombstone was written by one that died before it deleted."""
        if self._finished:
            return
        self._finished = True
        there = set(self._store.checkpoint_folders())
        for name in self._store.tombstones():
            if f"checkpoints/{name}" in there:
                self._delete(name)

    def _delete(self, name: str) -> None:
        self._store.create_tombstone(name)
        self._store.delete_checkpoint(f"checkpoints/{name}")

    def _expendable(self, facts: Facts) -> tuple[str, ...]:
        seen, history = facts.seen, facts.history
        reachable = {view.manifest: view for view in seen.checkpoints}
        deleted = self._store.tombstones()
        there = []
        for name in self._store.manifest_names():
            if name in deleted:
                continue
            view = reachable.get(name)
            step, _, attempt = name.partition("-a")
            there.append(
                Kept(
                    manifest=name,
                    next_step=int(step),
                    attempt=int(attempt),
                    proven=view is not None and view.proven,
                    reachable=view is not None,
                    quarantined=view is not None and view.quarantined,
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
