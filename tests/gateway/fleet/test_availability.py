"""What is available for requests, after everything that can change it."""

from dataclasses import replace

from msgspec import structs

from gateway.scheduling.base import DeploymentConstraints
from tests.gateway.fleet.fleet import Fleet, deployment


def test_whether_a_slot_is_free_is_known_after_every_change() -> None:
    fleet = Fleet()
    chat = DeploymentConstraints("chat")
    embeddings = DeploymentConstraints("embeddings")
    index = fleet.registry.index

    def free() -> tuple[bool, bool, bool]:
        version = structs.replace(chat, version="2")
        return index.has_free("m", chat), index.has_free("m", embeddings), index.has_free("m", version)

    assert free() == (False, False, False), "of a model that nobody knows"
    agent = fleet.connect("a", deployment("m", 1, routes=("chat",)))
    assert free() == (True, False, False)
    client = fleet.submit()
    assert free() == (False, False, False), "the slot is taken"
    client.cancel()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.settle()
    assert free() == (True, False, False)
    agent.serve(deployment("m", 1, routes=("embeddings",)))
    fleet.settle()
    assert free() == (False, True, False), "its engine does something else"
    agent.serve(replace(deployment("m", 1, routes=("chat",)), version="2"))
    fleet.settle()
    assert free() == (True, False, True)
    agent.endpoint.send_slots({"d-m": 0})
    fleet.settle()
    assert free() == (False, False, False)
