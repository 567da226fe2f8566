"""More acts wait than the audit log takes up at a time."""

from collections.abc import Collection

from gateway.observability.audit import AuditFiles
from gateway.observability.audit.acts import MOST_ACTS
from gateway.storage.acts import AdminAction
from tests.gateway.observability.audit.logs import NOON_S, kinds
from tests.gateway.observability.audit.test_writer import Things, writer_of


class WaitingActs(Things):
    def __init__(self) -> None:
        super().__init__()
        self.waiting = [
            AdminAction(str(number), NOON_S, "thing.change", "os:x", {}) for number in range(MOST_ACTS + 2)
        ]

    def pending(self, most: int) -> tuple[AdminAction, ...]:  # type: ignore[override]
        super().pending(most)
        return tuple(self.waiting[:most])

    def forget(self, ids: Collection[str]) -> None:  # type: ignore[override]
        self.waiting = [each for each in self.waiting if each.id not in ids]


def test_acts_beyond_those_that_are_taken_up_at_a_time_follow_though_nothing_changes(
    files: AuditFiles,
) -> None:
    acts = WaitingActs()
    writer = writer_of(files, acts)
    assert writer.write()
    assert len(acts.waiting) == 2
    assert writer.write()
    assert not acts.waiting
    assert kinds(files.directory).count("thing.change") == MOST_ACTS + 2
    asked = acts.asked
    assert writer.write()
    assert acts.asked == asked, "there are no more"
