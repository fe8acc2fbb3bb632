-- vacate.lua removes the state of a repository that was moved to another cell, except for the mark. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 state of its views (hash)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move
-- Returns {'vacated'}   only the mark is left
--         {'lost'}      see lease.lua
--         {'elsewhere', value}   it is not marked as moved there; nothing changed

if not is(place, 'moved ' .. ARGV[3] .. ' ' .. ARGV[4]) then return {'elsewhere', place} end
local kept = redis.call('HMGET', state, 'repo', 'fence')
redis.call('DEL', state, KEYS[3])
redis.call('HSET', state, 'cell', place)
if kept[1] then redis.call('HSET', state, 'repo', kept[1]) end
if kept[2] then redis.call('HSET', state, 'fence', kept[2]) end
return {'vacated'}
