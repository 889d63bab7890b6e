"""The two text formats: which one a scraper gets, and that both say the same as the library's own."""

import math
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Metric,
    disable_created_metrics,
    enable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, UnknownMetricFamily
from prometheus_client.metrics import Counter, Histogram
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from edgeguardd.exposition import Format, wanted, written

# The library's own: of these it gives no types.
library_text: Any = generate_latest
library_openmetrics: Any = openmetrics.generate_latest
parsed: Any = text_string_to_metric_families

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.one_of(st.integers(0, 2**63), st.floats(0, allow_nan=False), st.just(math.inf))


@pytest.fixture(autouse=True, scope="module")
def without_created() -> Iterator[None]:
    """As in the daemon: when each series began is told by nobody."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    yield
    enable_created_metrics()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        (BROWSER, Format.TEXT),
        ("text/plain", Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.7", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=1e9", Format.TEXT),
        ("application/openmetrics-text;q=nan", Format.TEXT),
        ("application/openmetrics-text;q=much", Format.TEXT),
        ("application/openmetrics-text;version=2.0.0", Format.TEXT),
        (";;,=,q=1;application/openmetrics-text", Format.TEXT),
        (",".join(["application/openmetrics-text;q=0.5"] * 400 + ["*/*;q=0.1"]), Format.OPENMETRICS),
    ],
)
def test_a_scraper_gets_what_it_prefers(accept: str, form: Format) -> None:
    """By weight, then OpenMetrics; a version or a weight that is not known is not asked for."""
    assert wanted(accept) is form


@given(texts)
def test_no_accept_header_is_too_strange(accept: str) -> None:
    """Whatever a peer sends, it is answered in one of the two."""
    assert wanted(accept) in Format


@given(documentation=texts, value=texts, number=numbers)
def test_both_formats_are_the_librarys_byte_for_byte(documentation: str, value: str, number: float) -> None:
    """For any label value, number and documentation, exemplars included, whose time stamps are those of the moment."""
    registry = CollectorRegistry()
    counter = Counter("a", documentation, ["one", "two"], registry=registry)
    counter.labels(value, "x").inc(number, {"seq": value, "epoch": "7"})
    Histogram("b_seconds", documentation, ["one"], registry=registry, buckets=(0.1, 1.0)).labels(value).observe(0.5)
    gauge = GaugeMetricFamily("c", documentation, labels=["one"])
    gauge.add_metric([value], number)
    without = CounterMetricFamily("d", documentation, value=number)
    families: list[Metric] = [
        gauge,
        without,
        InfoMetricFamily("e", documentation, {"one": value}),
        UnknownMetricFamily("f", "g", 1),
    ]

    class Given:
        def collect(self) -> list[Metric]:
            return families

    registry.register(cast(Collector, Given()))
    assert written(registry.collect(), Format.TEXT) == library_text(registry)
    assert written(registry.collect(), Format.OPENMETRICS) == library_openmetrics(registry)


def test_openmetrics_is_read_by_its_reference_parser() -> None:
    """With the exemplar where it was put."""
    registry = CollectorRegistry()
    Counter("a", "b", registry=registry).inc(1, {"seq": "4"})
    (family,) = parsed(written(registry.collect(), Format.OPENMETRICS).decode())
    (exemplar,) = [sample.exemplar for sample in family.samples if sample.name == "a_total"]
    assert exemplar is not None
    assert exemplar.labels == {"seq": "4"}


def test_half_a_character_is_no_reason_to_fail() -> None:
    """A scrape in which one name is no text still tells of all others."""
    gauge = GaugeMetricFamily("a", "b", labels=["one"])
    gauge.add_metric(["\udcff"], 1)
    assert b'a{one="?"} 1.0' in written([gauge], Format.TEXT)
