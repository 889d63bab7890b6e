"""How much a peer may do in a while."""

from edgeguardd.serve.bucket import TokenBucket


def taken(bucket: TokenBucket, now: float) -> int:
    count = 0
    while bucket.take(now):
        count += 1
    return count


def test_a_full_bucket_gives_its_burst_and_then_its_rate() -> None:
    """The burst is there at once; later each second gives as many as the rate says."""
    bucket = TokenBucket(per_s=10, burst=5, now=0.0)
    assert taken(bucket, 0.0) == 5
    assert taken(bucket, 0.2) == 2
    assert taken(bucket, 0.2) == 0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    """A long silence does not save up tokens."""
    bucket = TokenBucket(per_s=10, burst=5, now=0.0)
    assert taken(bucket, 1000.0) == 5


def test_the_wait_is_as_long_as_the_tokens_take() -> None:
    """Waiting as long as told gives so many tokens."""
    bucket = TokenBucket(per_s=10, burst=5, now=0.0)
    taken(bucket, 0.0)
    assert bucket.wait_s(3) == 0.3
    assert taken(bucket, 0.3 + 1e-9) == 3


def test_a_clock_that_goes_back_gives_nothing() -> None:
    """Time that goes backwards neither gives nor takes tokens."""
    bucket = TokenBucket(per_s=10, burst=1, now=100.0)
    assert bucket.take(100.0)
    assert not bucket.take(50.0)
    assert not bucket.take(100.05)
    assert bucket.take(100.11)
