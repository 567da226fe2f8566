"""KEDA's calls over gRPC, made by a client from the published interface."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from gateway.scaling.keda.messages import message_class
from gateway.scaling.keda.server import KedaScaler, KedaSettings, KedaUnusable
from tests.gateway.scaling.logged import until
from tests.gateway.scaling.test_autoscaler import Site
from tests.support.tls import make_certificate

SERVICE = "/externalscaler.ExternalScaler/"


class Client:
    """What KEDA's operator does."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def ask(self, method: str, request: str, response: str, message: Any, *, stream: bool = False) -> Any:
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        call = make(
            SERVICE + method,
            request_serializer=message_class(request).SerializeToString,
            response_deserializer=message_class(response).FromString,
        )
        return call(message)

    @staticmethod
    def reference(**metadata: str) -> Any:
        return message_class("ScaledObjectRef")(name="agents", namespace="gpu", scalerMetadata=metadata)

    async def is_active(self, **metadata: str) -> bool:
        asked = self.ask("IsActive", "ScaledObjectRef", "IsActiveResponse", self.reference(**metadata))
        return bool((await asked).result)

    async def wanted(self, **metadata: str) -> float:
        request = message_class("GetMetricsRequest")(
            scaledObjectRef=self.reference(**metadata), metricName="w"
        )
        found = await self.ask("GetMetrics", "GetMetricsRequest", "GetMetricsResponse", request)
        (value,) = found.metricValues
        assert (value.metricName, float(value.metricValue)) == ("w", value.metricValueFloat)
        return float(value.metricValueFloat)


@asynccontextmanager
async def served(site: Site, channel: Any = None, **more: Any) -> AsyncIterator[Client]:
    """``channel`` makes the client's, of a target."""
    scaler = KedaScaler(KedaSettings("127.0.0.1:0", **more), site.scaler)
    serving = asyncio.Event()
    task = asyncio.ensure_future(scaler.serve(serving.set))
    await serving.wait()
    async with (channel or grpc.aio.insecure_channel)(f"127.0.0.1:{scaler.port}") as opened:
        yield Client(opened)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def busy() -> Site:
    site = Site()
    site.has(1, per_s=3.0, idle_s=0.0)
    await site.wanted()
    return site


async def test_keda_is_told_how_many_replicas_are_wanted_of_one_class_or_of_all() -> None:
    site = await busy()
    wanted = site.scaler.verdicts["m"].wanted
    async with served(site) as client:
        spec = await client.ask(
            "GetMetricSpec", "ScaledObjectRef", "GetMetricSpecResponse", client.reference(model="m")
        )
        assert [(each.targetSize, each.targetSizeFloat) for each in spec.metricSpecs] == [(1, 1.0)]
        assert await client.wanted(model="m") == wanted > 1
        assert await client.wanted(model="m", **{"class": "l4"}) == wanted
        assert await client.wanted(model="m", **{"class": "h100"}) == 0
        assert await client.wanted(model="never") == 0
        assert await client.is_active(model="m")
        assert not await client.is_active(model="never")


async def test_what_becomes_active_is_pushed_and_what_stays_so_is_not_told_again() -> None:
    site = Site()
    async with served(site) as client:
        stream = client.ask(
            "StreamIsActive", "ScaledObjectRef", "IsActiveResponse", client.reference(model="m"), stream=True
        )
        assert (await stream.read()).result is False
        site.has(0, waiting=1)
        await site.wanted()
        assert (await stream.read()).result is True
        await site.wanted()
        site.seen = {}
        await site.scaler.decide()
        assert (await stream.read()).result is False
        stream.cancel()


async def test_a_trigger_without_a_model_or_with_another_token_is_refused(tmp_path: Path) -> None:
    site, token = await busy(), tmp_path / "token"
    token.write_text("a-token-of-its-own\n")
    async with served(site, token_file=token) as client:
        for metadata, code in (
            ({"model": "m"}, grpc.StatusCode.UNAUTHENTICATED),
            ({"model": "m", "trunklineToken": "another"}, grpc.StatusCode.UNAUTHENTICATED),
            ({"trunklineToken": "a-token-of-its-own"}, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.is_active(**metadata)
            assert refused.value.code() is code
        assert await client.is_active(model="m", trunklineToken="a-token-of-its-own")


async def test_over_tls_clients_may_have_to_show_a_certificate(tmp_path: Path) -> None:
    site, (cert, key) = await busy(), make_certificate(tmp_path)
    pair = {"private_key": key.read_bytes(), "certificate_chain": cert.read_bytes()}

    def opened(shown: dict[str, bytes]) -> Any:
        credentials = grpc.ssl_channel_credentials(cert.read_bytes(), **shown)
        return lambda target: grpc.aio.secure_channel(target, credentials)

    async with served(site, opened(pair), cert=cert, key=key, client_ca=cert) as client:
        assert await client.is_active(model="m")
    async with served(site, opened({}), cert=cert, key=key) as client:
        assert await client.is_active(model="m")
    async with served(site, opened({}), cert=cert, key=key, client_ca=cert) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.is_active(model="m")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_files_that_cannot_be_used_are_told() -> None:
    with pytest.raises(KedaUnusable, match="cannot be read"):
        KedaScaler(KedaSettings("127.0.0.1:0", token_file=Path("/no/such/file")), Site().scaler)


async def test_an_address_that_another_has_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    first = KedaScaler(KedaSettings("127.0.0.1:0"), site.scaler)
    serving = asyncio.Event()
    task = asyncio.ensure_future(first.serve(serving.set))
    await serving.wait()
    second = KedaScaler(KedaSettings(f"127.0.0.1:{first.port}"), site.scaler)
    monkeypatch.setattr("gateway.scaling.keda.server.AGAIN_S", 0.01)
    with structlog.testing.capture_logs() as logs:
        trying = asyncio.ensure_future(second.run())
        await until(logs, "keda_not_served")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(logs, "keda_listens")
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
