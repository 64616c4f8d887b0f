"""The same with asyncio."""
import asyncio
import time

import virga


@virga.function(concurrency=2)
def slowly(x):
    time.sleep(0.1)
    return x * x


async def main():
    print(await asyncio.gather(slowly.aio(2), slowly.aio(3), slowly.aio(4)))
    async for value in slowly.aio.map(range(3)):
        print(value)
    done = await virga.arun(["echo", "from the cloud"], capture=True)
    print(done.stdout.strip())
    task = virga.submit("echo one; echo two")
    print([line async for line in task.alogs()], await task)


if __name__ == "__main__":
    asyncio.run(main())
