-- depart.lua marks a repository as moved to another cell: the commit point of a move. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 poll (ZSET)   4 results (stream)   5 departing (ZSET: repository key -> ms)   6 failing (hash)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move   5 repository key   6 its path   7 ' pinned' if it stays there, or ''
--         8 ms after which other processes complete the move
-- Returns {'moved'}   marked, now or by an earlier call
--         {'lost'}    see lease.lua
--         {'elsewhere', value}   it is marked otherwise; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.
--
-- The mark has the last entry of results then, '0-0' for none. A repeated call writes the same mark again, so that a caller can wait
-- until replicas have it.

local mark = 'moved ' .. ARGV[3] .. ' ' .. ARGV[4]
if place ~= '' and not is(place, mark) then return {'elsewhere', place} end
if place ~= '' then
  redis.call('HSET', state, 'cell', place)
  return {'moved'}
end

local newest = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HSET', state, 'cell', mark .. ' ' .. (newest and newest[1] or '0-0') .. ARGV[7])
redis.call('HSETNX', state, 'repo', ARGV[6]) -- else it keeps its spelling
redis.call('ZREM', KEYS[3], ARGV[5])
redis.call('HDEL', KEYS[6], ARGV[5])
redis.call('ZADD', KEYS[5], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[8]), ARGV[5])
return {'moved'}
