"""KEDA's external scaler over gRPC: KEDA asks whether a model is active and how many replicas are wanted, and
is told at once when something is asked of a model that has none.

A ScaledObject names ``model``, may name ``class``, and ``trunklineToken`` where the gateway wants one.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from gateway.scaling.autoscaler import Autoscaler
from gateway.scaling.keda.messages import SERVICE, message_class
from gateway.scaling.verdict import ModelVerdict

METRIC = "trunkline-wanted-replicas"
MODEL, CLASS, TOKEN = "model", "class", "trunklineToken"
MESSAGE_BYTES = 64 * 1024
STREAMS = 256
STOP_S = 2.0
AGAIN_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KedaSettings:
    """Where it listens, and whom it answers."""

    listen: str
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token_file: Path | None = None


class KedaUnusable(Exception):
    """It cannot be served. The message says why."""


class KedaScaler:
    """Answers from the latest verdicts. Belongs to the event loop's thread."""

    def __init__(self, settings: KedaSettings, scaler: Autoscaler) -> None:
        """Reads its files. Raises KedaUnusable."""
        self._settings = settings
        self._scaler = scaler
        try:
            token = None if settings.token_file is None else settings.token_file.read_text().strip()
            self._credentials = _credentials(settings)
        except (OSError, UnicodeDecodeError) as error:
            raise KedaUnusable(f"a file cannot be read: {error}") from error
        if token == "":
            raise KedaUnusable(f"{settings.token_file} is empty")
        self._token = token
        self.port = 0

    async def run(self) -> None:
        """Serve until this is cancelled. The address may be another process's for a while, which this one
        takes the place of."""
        while True:
            try:
                await self.serve()
            except KedaUnusable as error:
                _log.warning("keda_not_served", reason=str(error))
            await asyncio.sleep(AGAIN_S)

    async def serve(self, serving: Callable[[], None] = lambda: None) -> None:
        """Serve until this is cancelled; ``serving`` is called when clients can connect. Raises KedaUnusable
        where the address cannot be had."""
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=STREAMS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._settings.listen)
            else:
                self.port = server.add_secure_port(self._settings.listen, self._credentials)
        except RuntimeError as error:
            raise KedaUnusable(f"{self._settings.listen} cannot be had: {error}") from None
        await server.start()
        _log.info("keda_listens", address=self._settings.listen, tls=self._credentials is not None)
        serving()
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(STOP_S)

    def _handlers(self) -> Any:
        reference, unary = message_class("ScaledObjectRef"), grpc.unary_unary_rpc_method_handler

        def reads(request: str) -> dict[str, Any]:
            return {
                "request_deserializer": message_class(request).FromString,
                "response_serializer": lambda message: message.SerializeToString(),
            }

        of_reference = reads(reference.DESCRIPTOR.name)
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self.is_active, **of_reference),
                "StreamIsActive": grpc.unary_stream_rpc_method_handler(self.stream_is_active, **of_reference),
                "GetMetricSpec": unary(self.get_metric_spec, **of_reference),
                "GetMetrics": unary(self.get_metrics, **reads("GetMetricsRequest")),
            },
        )

    async def is_active(self, reference: Any, context: Any) -> Any:
        """Whether one replica at least is wanted."""
        await self._check(reference, context)
        return message_class("IsActiveResponse")(result=self._wanted(reference) > 0)

    async def stream_is_active(self, reference: Any, context: Any) -> AsyncIterator[Any]:
        """The same, at once and whenever it is otherwise."""
        await self._check(reference, context)
        answer, told = message_class("IsActiveResponse"), None
        async for _ in self._scaler.decisions():
            active = self._wanted(reference) > 0
            if active is not told:
                told = active
                yield answer(result=active)

    async def get_metric_spec(self, reference: Any, context: Any) -> Any:
        """One metric, whose target is 1: as many replicas as its value."""
        await self._check(reference, context)
        spec = message_class("MetricSpec")(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return message_class("GetMetricSpecResponse")(metricSpecs=[spec])

    async def get_metrics(self, request: Any, context: Any) -> Any:
        """How many replicas are wanted."""
        await self._check(request.scaledObjectRef, context)
        wanted = self._wanted(request.scaledObjectRef)
        name = request.metricName or METRIC
        value = message_class("MetricValue")(metricName=name, metricValue=wanted, metricValueFloat=wanted)
        return message_class("GetMetricsResponse")(metricValues=[value])

    async def _check(self, reference: Any, context: Any) -> None:
        said: Mapping[str, str] = reference.scalerMetadata
        if self._token is not None and not _same(said.get(TOKEN, ""), self._token):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{TOKEN} is missing, or is another one")
        if not said.get(MODEL):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the trigger's metadata names no model")

    def _wanted(self, reference: Any) -> int:
        verdict: ModelVerdict | None = self._scaler.verdicts.get(reference.scalerMetadata[MODEL])
        if verdict is None:
            return 0
        device = reference.scalerMetadata.get(CLASS)
        if not device:
            return verdict.wanted
        return verdict.classes[device].wanted if device in verdict.classes else 0


def _credentials(settings: KedaSettings) -> Any:
    """Of TLS; None: there is none. Raises OSError."""
    if settings.cert is None or settings.key is None:
        return None
    pair = settings.key.read_bytes(), settings.cert.read_bytes()
    clients = None if settings.client_ca is None else settings.client_ca.read_bytes()
    return grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)


def _same(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode(), token.encode())
