-- activate.lua gives a repository that arrives from another cell its state, in place of what is left of an earlier stay. lease.lua precedes it.
--
-- KEYS    1-2 see lease.lua   3 state of its views (hash)
-- ARGV    1-2 see lease.lua   3 the other cell   4 epoch of the move
--         then the number of names and values of the state, those in turn, and likewise of the views
-- Returns {'active'}   it has the state, since now or an earlier call
--         {'lost'}     see lease.lua
--         {'elsewhere', value}   it has come or left by a later move; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; a repeated call completes it.

local move = ARGV[3] .. ' ' .. ARGV[4]
local from = redis.call('HGET', state, 'from') or ''
if place == '' and is(from, move) then return {'active'} end
local last = math.max(tonumber(string.match(place, '^%S+ %S+ (%d+)') or 0), tonumber(string.match(from, '^%S+ (%d+)') or 0))
if last > tonumber(ARGV[4]) then return {'elsewhere', place .. from} end

local argAt = 4
local function set(key)
  argAt = argAt + 1
  local n = tonumber(ARGV[argAt])
  for i = argAt + 1, argAt + n, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  argAt = argAt + n
end
redis.call('HLEN', KEYS[3])
redis.call('DEL', state, KEYS[3])
set(state)
set(KEYS[3])
local fetched = redis.call('HGET', state, 'from') == 'fetched' and ' fetched' or '' -- nothing is to be fetched
redis.call('HSET', state, 'from', move .. string.format(' %.0f', time[1] * 1000 + math.floor(time[2] / 1000)) .. fetched)
return {'active'}
