"""A thousand items over a few workers. Results come in order; what fails is told at its place."""
import virga


@virga.function(concurrency=2)
def inverse(n):
    return 1 / (n - 500)


if __name__ == "__main__":
    results = list(inverse.map(range(1000), return_exceptions=True))
    bad = [(i, r) for i, r in enumerate(results) if isinstance(r, Exception)]
    print(f"{len(results)} results, the first {results[0]}, the last {results[-1]:.6f}")
    print(f"failed: {bad}")
