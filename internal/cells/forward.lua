-- forward.lua adds an entry of another cell to the stream of this one, unless an earlier call has: the caller may have died before it
-- settled the entry there.
--
-- KEYS    1 mark of the entry (string)   2 stream of changes
-- ARGV    1 ms for which the mark is kept   2… fields and values of the entry
-- Returns the ID of the entry, that of the earlier call included.
-- Fails with WRONGTYPE if a key has another type, without changing anything.

local known = redis.call('GET', KEYS[1])
if known then return known end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('SET', KEYS[1], id, 'PX', ARGV[1])
return id
