-- activate.lua gives a repository that arrives from another cell its state, after which it is worked on here. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 state of its views (hash)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move
--         then the number of names and values of the state, those in turn, and likewise of the views
-- Returns {'active'}   it is worked on here, since now or an earlier call
--         {'lost'}     see lease.lua
--         {'elsewhere', value}   it does not arrive by that move; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; a repeated call completes it.

local move = ARGV[3] .. ' ' .. ARGV[4]
if place == '' and is(redis.call('HGET', state, 'from'), move) then return {'active'} end
if not is(place, 'arriving ' .. move) then return {'elsewhere', place} end

local argAt = 4
local function set(key)
  argAt = argAt + 1
  local n = tonumber(ARGV[argAt])
  for i = argAt + 1, argAt + n, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  argAt = argAt + n
end
redis.call('HLEN', KEYS[3])
set(state)
set(KEYS[3])
local fetched = redis.call('HGET', state, 'from') == 'fetched' and ' fetched' or '' -- nothing is to be fetched
redis.call('HSET', state, 'from', move .. string.format(' %.0f', time[1] * 1000 + math.floor(time[2] / 1000)) .. fetched)
redis.call('HDEL', state, 'cell')
return {'active'}
