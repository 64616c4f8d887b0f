"""Code for concurrent.futures runs on the cloud with another executor."""
import concurrent.futures

import virga

k = 10
with virga.Executor(max_workers=2) as ex:
    print(list(ex.map(lambda x: x * k, range(5))))
    futures = {ex.submit(pow, 2, n): n for n in (8, 16, 32)}
    for future in concurrent.futures.as_completed(futures):
        print(f"2**{futures[future]} = {future.result()}")
