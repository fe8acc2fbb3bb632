-- arrive.lua marks a repository as arriving from another cell. Nothing works on it here until it is activated. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 state of its views (hash)   4 departed (ZSET: repository key -> ms)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move   5 repository key
-- Returns {'arriving'}   marked, now or by an earlier call
--         {'lost'}       see lease.lua
--         {'occupied'}   there is a repository here; nothing changed
--         {'elsewhere', value}   it has come, left, or begun to arrive by a later move; nothing changed
--
-- What is left of a repository that was moved from here before is forgotten, but not its fence. Failures of changes that were sent here by
-- mistake are no repository.

local from = redis.call('HGET', state, 'from') or ''
local last = math.max(tonumber(string.match(place, '^%S+ %S+ (%d+)') or 0), tonumber(string.match(from, '^%S+ (%d+)') or 0))
if last > tonumber(ARGV[4]) then return {'elsewhere', place .. from} end
if place == '' then
  for _, name in ipairs(redis.call('HKEYS', state)) do
    local kind = string.match(name, '^[^:]*')
    if kind == 'synced' or kind == 'head' or kind == 'given' or kind == 'moved' then return {'occupied'} end
  end
end
local fence = redis.call('HGET', state, 'fence')
redis.call('ZCARD', KEYS[4])
redis.call('DEL', state, KEYS[3])
redis.call('HSET', state, 'cell', 'arriving ' .. ARGV[3] .. ' ' .. ARGV[4])
if fence then redis.call('HSET', state, 'fence', fence) end
redis.call('ZREM', KEYS[4], ARGV[5])
return {'arriving'}
