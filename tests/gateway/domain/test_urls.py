"""Which URLs documents are fetched from."""

import pytest

from gateway.domain.urls import BadUrl, check_url


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "http://127.0.0.1.example/keys",
        "http://10.0.0.1/keys",
        "http://169.254.169.254/latest",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://",
        "https:///keys",
        "https://user@id.example/keys",
        "https://id.example/#x",
        "https://id.example/a b",
        "https://id.example/a\r\nhost: evil",
        "https://id.example:port/",
        "https://[::1/",
        "",
    ],
)
def test_urls_that_are_not_fetched_from(url: str) -> None:
    with pytest.raises(BadUrl):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["https://id.example/keys?x=1", "http://127.0.0.1:80/", "http://[::1]:8/", "http://localhost/k"]
)
def test_urls_that_are(url: str) -> None:
    assert check_url(url).geturl() == url
