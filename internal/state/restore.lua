-- restore.lua stores the exported state of a repository, unless it has any.
--
-- KEYS    1 state of the repository (hash)   2 state of its views (hash)
-- ARGV    1 '1' to change nothing   2 number of kinds of fields, those: a field of one of them is state
--         then the number of names and values of the state, those in turn
--         then the number of names and values of the views, those in turn
-- Returns 'restored'   it had no state, and has this one, or would have it
--         'same'       it has state with these values
--         'kept'       it has other state, which stays
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.

local at = 1
local function list()
  at = at + 1
  local values = {}
  for i = 1, tonumber(ARGV[at]) do
    at = at + 1
    values[i] = ARGV[at]
  end
  return values
end
local kinds = {}
for _, kind in ipairs(list()) do kinds[kind] = true end
local fields, views = list(), list()

local has = false
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do has = has or kinds[string.match(name, '^[^:]*')] end
redis.call('HLEN', KEYS[2])
if has then
  for i = 1, #fields, 2 do
    if redis.call('HGET', KEYS[1], fields[i]) ~= fields[i + 1] then return 'kept' end
  end
  return 'same'
end
if ARGV[1] ~= '1' then
  for i = 1, #fields, 2 do redis.call('HSET', KEYS[1], fields[i], fields[i + 1]) end
  for i = 1, #views, 2 do redis.call('HSET', KEYS[2], views[i], views[i + 1]) end
end
return 'restored'
