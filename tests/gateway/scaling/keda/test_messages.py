"""The messages are those of KEDA's published interface, byte by byte."""

from gateway.scaling.keda.messages import message_class


def test_fields_have_their_published_numbers_and_types_on_the_wire() -> None:
    reference = message_class("ScaledObjectRef")(name="o", namespace="n", scalerMetadata={"model": "m"})
    assert reference.SerializeToString() == b"\x0a\x01o\x12\x01n\x1a\x0a\x0a\x05model\x12\x01m"
    value = message_class("MetricValue")(metricName="x", metricValue=2, metricValueFloat=2.0)
    assert value.SerializeToString() == b"\x0a\x01x\x10\x02\x19" + b"\x00" * 7 + b"\x40"
    spec = message_class("GetMetricSpecResponse")(
        metricSpecs=[message_class("MetricSpec")(metricName="x", targetSize=1)]
    )
    assert spec.SerializeToString() == b"\x0a\x05\x0a\x01x\x10\x01"
    assert message_class("IsActiveResponse")(result=True).SerializeToString() == b"\x08\x01"
    request = message_class("GetMetricsRequest")(scaledObjectRef=reference, metricName="x")
    assert request.SerializeToString().endswith(b"\x12\x01x")
    assert message_class("GetMetricsResponse")(metricValues=[value]).SerializeToString()[:1] == b"\x0a"
