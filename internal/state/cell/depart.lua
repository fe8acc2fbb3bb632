-- depart.lua marks a repository as moved to another cell: the commit point of a move. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 poll (ZSET)   4 results (stream)   5 departed (ZSET: repository key -> ms)   6 failing (hash)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move   5 repository key   6 its path
-- Returns {'moved'}   marked, now or by an earlier call
--         {'lost'}    see lease.lua
--         {'elsewhere', value}   it is marked otherwise, or not here yet; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.
--
-- The mark ends with the last entry of results then, '0-0' for none. A repeated call writes the same mark again, so that a caller can wait
-- until replicas have it.

local mark = 'moved ' .. ARGV[3] .. ' ' .. ARGV[4]
if place ~= '' and not is(place, mark) then return {'elsewhere', place} end

local last = string.match(place, ' (%S+)$')
if place == '' then
  local newest = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
  last = newest and newest[1] or '0-0'
end
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HSET', state, 'cell', mark .. ' ' .. last)
redis.call('HSETNX', state, 'repo', ARGV[6]) -- else it keeps its spelling
redis.call('ZREM', KEYS[3], ARGV[5])
redis.call('HDEL', KEYS[6], ARGV[5])
redis.call('ZADD', KEYS[5], 'NX', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), ARGV[5])
return {'moved'}
