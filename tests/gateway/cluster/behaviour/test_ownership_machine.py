"""Whatever is late, frozen or lost: two processes never own at once, and epochs never go back."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.cluster.ownership import LEADER, TTL_S, LeasedOwnership
from gateway.storage.ownership import OwnershipClaim, OwnershipLease

PROCESSES = 3
DELAYS_S = st.sampled_from([0.0, 0.0, 2.0, 3.9, 5.9, 8.0])


@dataclass
class Process:
    name: str
    offset_s: float
    """Of its own clock."""
    incarnation: int = 1
    ownership: LeasedOwnership = field(init=False)
    asked_s: float | None = None
    """When it made the claim that is under way."""
    answer: OwnershipLease | None = None
    answered: bool = False


class OwnershipMachine(RuleBasedStateMachine):
    """A claim has three steps, and any time may pass between two of them: it is made, the store takes it up,
    and the process hears of it."""

    @initialize(offsets=st.lists(st.floats(-1e6, 1e6), min_size=PROCESSES, max_size=PROCESSES))
    def begin(self, offsets: list[float]) -> None:
        self.now = 0.0
        self.row: OwnershipLease | None = None
        self.epochs: list[int] = []
        self.processes = [Process(f"p{n}", offset) for n, offset in enumerate(offsets)]
        for process in self.processes:
            self.start(process)

    def start(self, process: Process) -> None:
        offset_s = process.offset_s
        process.ownership = LeasedOwnership(process.name, process.incarnation, lambda: self.now + offset_s)
        process.asked_s, process.answer, process.answered = None, None, False

    @rule(number=st.integers(0, PROCESSES - 1), there_s=DELAYS_S, back_s=DELAYS_S)
    def claims_and_hears_of_it(self, number: int, there_s: float, back_s: float) -> None:
        """Nobody else is heard of meanwhile; the steps by themselves are the rules below."""
        self.claims(number)
        self.now += there_s
        self.the_store_takes_it_up(number)
        self.one_owner_at_most()
        self.now += back_s
        self.hears_of_it(number, lost=False)

    @rule(seconds=DELAYS_S)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, PROCESSES - 1))
    def claims(self, number: int) -> None:
        process = self.processes[number]
        process.asked_s, process.answered = self.now + process.offset_s, False

    @rule(number=st.integers(0, PROCESSES - 1))
    def the_store_takes_it_up(self, number: int) -> None:
        process = self.processes[number]
        if process.asked_s is None or process.answered:
            return
        claim = OwnershipClaim(LEADER, process.name, process.incarnation, TTL_S, int(self.now))
        after = claim.on(self.row, self.now)
        self.row = self.row if after is None else after
        process.answer, process.answered = self.row, True

    @rule(number=st.integers(0, PROCESSES - 1), lost=st.booleans())
    def hears_of_it(self, number: int, lost: bool) -> None:
        process = self.processes[number]
        if process.asked_s is None or not process.answered:
            return
        if not lost:
            process.ownership.answered(process.answer, process.asked_s)
        process.asked_s = None

    @rule(number=st.integers(0, PROCESSES - 1))
    def gives_it_back(self, number: int) -> None:
        process = self.processes[number]
        process.ownership.end()
        process.asked_s = None
        row = self.row
        if row is not None and row.held_by(process.name, process.incarnation):
            self.row = OwnershipLease(row.name, None, row.incarnation, row.epoch, row.until)

    @rule(number=st.integers(0, PROCESSES - 1))
    def is_killed_and_started_anew(self, number: int) -> None:
        self.processes[number].incarnation += 1
        self.start(self.processes[number])

    @invariant()
    def one_owner_at_most(self) -> None:
        owners = [each for each in getattr(self, "processes", []) if each.ownership.owns]
        assert len(owners) <= 1
        for owner in owners:
            epoch = owner.ownership.epoch
            assert epoch is not None
            assert self.row is not None
            assert self.row.held_by(owner.name, owner.incarnation)
            assert self.row.epoch == epoch
            self.epochs.append(epoch)
            assert self.epochs == sorted(self.epochs)


TestOwnership = OwnershipMachine.TestCase
TestOwnership.settings = settings(max_examples=max(150, settings().max_examples))
