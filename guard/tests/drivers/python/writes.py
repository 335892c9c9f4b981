"""A program that knows nothing of tokens. For each line of its input, it writes with asyncpg, and prints what came of it."""

import asyncio
import sys

import asyncpg


async def main() -> None:
    async with asyncpg.create_pool(sys.argv[1]) as pool:
        for _ in sys.stdin:
            try:
                await pool.execute("UPDATE orders SET total = total + $1 WHERE id = 42", 1)
                print("written", flush=True)
            except asyncpg.PostgresError as error:
                print(error.sqlstate, flush=True)


asyncio.run(main())
