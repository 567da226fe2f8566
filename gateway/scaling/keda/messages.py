"""The messages of KEDA's external scaler, built from descriptors: KEDA's published interface, as data.

Field numbers and names are those of ``externalscaler.proto`` of KEDA 2.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}
_MANY = "repeated "

FIELDS: dict[str, dict[str, str]] = {
    "ScaledObjectRef": {"name": "string", "namespace": "string", "scalerMetadata": "map"},
    "IsActiveResponse": {"result": "bool"},
    "MetricSpec": {"metricName": "string", "targetSize": "int64", "targetSizeFloat": "double"},
    "GetMetricSpecResponse": {"metricSpecs": "repeated MetricSpec"},
    "GetMetricsRequest": {"scaledObjectRef": "ScaledObjectRef", "metricName": "string"},
    "MetricValue": {"metricName": "string", "metricValue": "int64", "metricValueFloat": "double"},
    "GetMetricsResponse": {"metricValues": "repeated MetricValue"},
}
"""By message: its fields, numbered from 1, each with its type."""


def _file() -> Any:
    file = FileDescriptorProto(name="trunkline/externalscaler", package=PACKAGE, syntax="proto3")
    for name, members in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (member, kind) in enumerate(members.items(), 1):
            _add_field(message, member, number, kind)
    return file


def _add_field(message: Any, member: str, number: int, kind: str) -> None:
    field = message.field.add(name=member, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind == "map":  # text to text: entries of a message of their own, as protobuf defines maps
        entry = DescriptorProto(name=f"{member[0].upper()}{member[1:]}Entry")
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, "string")
        entry.options.map_entry = True
        message.nested_type.append(entry)
        kind = f"{_MANY}{message.name}.{entry.name}"
    if kind.startswith(_MANY):
        field.label, kind = FieldDescriptorProto.LABEL_REPEATED, kind.removeprefix(_MANY)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


_pool = DescriptorPool()
_pool.Add(_file())


def message_class(name: str) -> Any:
    """The class of a message, such as ``ScaledObjectRef``."""
    return GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
