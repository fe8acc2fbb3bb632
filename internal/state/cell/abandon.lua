-- abandon.lua ends a move that has not reached its commit point, in the cell that the repository would have arrived in. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move
-- Returns {'abandoned'}   it does not arrive here
--         {'lost'}        see lease.lua

if is(place, 'arriving ' .. ARGV[3] .. ' ' .. ARGV[4]) then redis.call('HDEL', state, 'cell') end
return {'abandoned'}
