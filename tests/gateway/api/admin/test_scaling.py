"""The pages of scaling: everything, and one model with numbers at its top."""

from gateway.domain.scopes import AdminRole
from shared.protocol.messages import DeploymentStatus
from tests.gateway.api.admin.house import House
from tests.gateway.fleet.fleet import deployment


async def served(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("org/llama", slots=4, device="NVIDIA L4"))
    house.fleet.connect("gpu-2", deployment("org/llama", slots=4, device="NVIDIA H100 80GB HBM3"))
    house.fleet.connect("gpu-3", deployment("org/llama", slots=0, status=DeploymentStatus.LOADING))
    await house.scaling.scaler.decide()


async def test_every_model_is_listed_by_class_with_what_its_replicas_have_left(house: House) -> None:
    await served(house)
    status, found, _ = await house.ask("GET", "/admin/scaling", AdminRole.VIEWER)
    assert status == 200
    said = found["models"]["org/llama"]
    assert {name: each["ready"] for name, each in said["classes"].items()} == {
        "l4": 1,
        "h100": 1,
        "unknown": 0,
    }
    assert said["classes"]["l4"]["replicas"] == [
        {"agent": "gpu-1", "running": 0, "remaining_s": 0.0, "cost": 0}
    ]
    assert said["why"]
    assert {each["device"] for each in said["options"]} == {"l4", "h100", "unknown"}


async def test_one_model_has_its_numbers_at_the_top_of_one_class_or_of_all(house: House) -> None:
    await served(house)
    _, whole, _ = await house.ask("GET", "/admin/scaling/org/llama", AdminRole.VIEWER)
    assert (whole["ready"], whole["starting"], whole["active"]) == (2, 1, True)
    _, one, _ = await house.ask("GET", "/admin/scaling/org/llama", AdminRole.VIEWER, query=b"class=l4")
    assert (one["ready"], one["starting"], one["class"]) == (1, 0, "l4")
    assert isinstance(one["wanted"], int)
    _, none, _ = await house.ask("GET", "/admin/scaling/org/llama", AdminRole.VIEWER, query=b"class=b200")
    assert (none["wanted"], none["active"]) == (0, False)


async def test_a_model_that_was_served_once_has_numbers_and_one_that_never_was_has_none(house: House) -> None:
    house.fleet.registry.index.learn("before", 1.0)
    status, found, _ = await house.ask("GET", "/admin/scaling/before", AdminRole.VIEWER)
    assert (status, found["wanted"]) == (200, 0)
    status, found, _ = await house.ask("GET", "/admin/scaling/never", AdminRole.VIEWER)
    assert (status, found["error"]["code"]) == (404, "not_found")
    assert (await house.ask("GET", "/admin/scaling/before", AdminRole.VIEWER, query=b"clas=l4"))[0] == 400
