"""A job runs as its key, for as long as the key counts."""

from pathlib import Path

import pytest

from gateway.auth.jobs import JobKeys
from gateway.auth.keys import KeyRing
from gateway.domain.errors import Unauthenticated
from gateway.storage import Store

NOW_S = 1000.0


async def test_the_holder_of_a_key_is_found_by_its_id(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        secret = store.keys.create("client", "acme", NOW_S)
        keys = JobKeys(KeyRing(store, lambda: NOW_S))
        (record,) = store.keys.list()
        found = await keys.identify(record.id)
        assert (found.key_id, found.key_name, found.tenant) == (record.id, "client", "acme")
        with pytest.raises(Unauthenticated):
            await keys.identify(secret)
        with pytest.raises(Unauthenticated) as unknown:
            await keys.identify("none")
        assert unknown.value.code == "key_unknown"
        store.keys.revoke("client", NOW_S)
        with pytest.raises(Unauthenticated):
            await keys.identify(record.id)


async def test_a_key_that_has_expired_runs_no_jobs(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.keys.create("client", "acme", NOW_S, life_s=10.0)
        now = [NOW_S]
        keys = JobKeys(KeyRing(store, lambda: now[0]))
        (record,) = store.keys.list()
        await keys.identify(record.id)
        now[0] += 11
        with pytest.raises(Unauthenticated) as expired:
            await keys.identify(record.id)
        assert expired.value.code == "key_expired"
