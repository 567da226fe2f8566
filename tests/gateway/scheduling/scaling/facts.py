"""Facts for tests of scaling, and strategies that make them."""

from hypothesis import strategies as st

from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule

L4 = ClassFacts("l4", slots=8, request_s=1.0, first_s=0.4, total_s=10.0, price_hour=0.8)
H100 = ClassFacts("h100", slots=64, request_s=0.1, first_s=0.1, total_s=3.0, price_hour=4.0)

rules = st.builds(
    ScalingRule,
    first_token_s=st.floats(0.1, 20),
    utilisation=st.floats(0.2, 0.95),
    queue_s=st.floats(1, 300),
    min_replicas=st.integers(0, 3),
    max_replicas=st.integers(3, 200),
    idle_s=st.floats(0, 1000),
)
loads = st.builds(
    ModelLoad,
    arriving_per_s=st.floats(0, 200),
    rising_per_s2=st.floats(0, 1),
    waiting=st.integers(0, 1000),
    batch_waiting=st.integers(0, 1000),
    in_flight=st.integers(0, 500),
    idle_s=st.floats(0, 5000),
)


def classes_named(name: str) -> st.SearchStrategy[ClassFacts]:
    return st.builds(
        ClassFacts,
        st.just(name),
        slots=st.integers(1, 256),
        request_s=st.floats(0.001, 60),
        first_s=st.floats(0, 5),
        ready=st.integers(0, 20),
        starting=st.integers(0, 5),
        lead_s=st.floats(1, 1000),
        price_hour=st.none() | st.floats(0.01, 50),
        min_replicas=st.integers(0, 2),
    )
