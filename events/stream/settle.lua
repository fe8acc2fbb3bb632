-- Settle: publish what came of an entry, set state, and acknowledge it, all or nothing. A dead letter
-- is one more thing to publish: the original entry with the reason why it was given up.
--
-- KEYS    1 stream   2 due index   3 failed attempts
--         then, as ARGV says: the guard's key, the dead stream, output streams, hashes
-- ARGV    1 group   2 consumer   3 entry id
--         1 with a guard, followed by owner and fence; or 0
--         1 with a dead letter, followed by the stream's cap, reason, error and attempts; or 0
--         number of outputs; for each the number of its fields and values, and these
--         number of hashes; for each 1 to clear it first, else 0, the number of its fields and values, and these
-- Returns "settled"    done
--         "already"    the entry is not pending any more: it was settled before, nothing changed
--         "gone"       nor is it in the stream: it was settled and then trimmed away, or Redis lost its
--                      data; nothing changed
--         "not owner"  the entry is pending under another consumer, or has yet to be read by the group,
--                      which was made anew: nothing changed
--         "guard"      the lease is not held by that owner with that fence, or has expired: nothing changed
-- Refuses with WRONGTYPE when a key holds something else, and with NOGROUP; nothing changed.
local group, consumer, id = ARGV[1], ARGV[2], ARGV[3]
local stream, due, tries = KEYS[1], KEYS[2], KEYS[3]

-- Scripts do not roll back, so everything is read and checked before anything changes.
local argAt, keyAt = 3, 3
local function arg() argAt = argAt + 1; return ARGV[argAt] end
local function key() keyAt = keyAt + 1; return KEYS[keyAt] end
local function list()
  local l = {}
  for i = 1, tonumber(arg()) do l[i] = arg() end
  return l
end

local guard, dead, outputs, hashes = nil, nil, {}, {}
if arg() == '1' then guard = {key = key(), owner = arg(), fence = arg()} end
if arg() == '1' then dead = {key = key(), cap = arg(), reason = arg(), error = arg(), attempts = arg()} end
for i = 1, tonumber(arg()) do outputs[i] = {key = key(), fields = list()} end
for i = 1, tonumber(arg()) do hashes[i] = {key = key(), clear = arg() == '1', fields = list()} end

local function precedes(a, b)
  local ams, aseq = string.match(a, '^(%d+)%-?(%d*)$')
  local bms, bseq = string.match(b, '^(%d+)%-?(%d*)$')
  if ams ~= bms then return tonumber(ams) < tonumber(bms) end
  return (tonumber(aseq) or 0) < (tonumber(bseq) or 0)
end

local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not pending then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
    if info['name'] == group and precedes(info['last-delivered-id'], id) then return 'not owner' end
  end
  return redis.call('XRANGE', stream, id, id)[1] and 'already' or 'gone'
end
if pending[2] ~= consumer then return 'not owner' end

local time = redis.call('TIME')
if guard then
  local held = redis.call('HMGET', guard.key, 'owner', 'fence', 'expires')
  local now = time[1] * 1000000 + time[2]
  local expires = tonumber(held[3] or '') or 0
  if held[1] ~= guard.owner or held[2] ~= guard.fence or expires <= now then return 'guard' end
end

local function expect(k, kind)
  local found = redis.call('TYPE', k)['ok']
  return found == kind or found == 'none'
end
local sound = not dead or expect(dead.key, 'stream')
for _, o in ipairs(outputs) do sound = sound and expect(o.key, 'stream') end
for _, h in ipairs(hashes) do sound = sound and expect(h.key, 'hash') end
if not sound then
  return redis.error_reply('WRONGTYPE an output is not a stream or a state is not a hash; nothing was settled')
end

for _, o in ipairs(outputs) do
  redis.call('XADD', o.key, '*', unpack(o.fields))
end
if dead then
  local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  local letter = {'reason', dead.reason, 'error', dead.error, 'attempts', dead.attempts,
    'stream', stream, 'group', group, 'entry', id, 'consumer', consumer, 'at', at}
  local original = redis.call('XRANGE', stream, id, id)[1]
  local fields = original and original[2] or {}
  -- Lua passes a bounded number of arguments. Nobody's event has a thousand fields.
  for i = 1, math.min(#fields, 2000), 2 do
    letter[#letter + 1] = 'original:' .. fields[i]
    letter[#letter + 1] = fields[i + 1]
  end
  if #fields > 2000 then
    letter[#letter + 1] = 'truncated'
    letter[#letter + 1] = string.format('%.0f of %.0f fields', 1000, #fields / 2)
  end
  redis.call('XADD', dead.key, 'MAXLEN', '~', dead.cap, '*', unpack(letter))
end
for _, h in ipairs(hashes) do
  if h.clear then redis.call('DEL', h.key) end
  for i = 1, #h.fields, 2 do redis.call('HSET', h.key, h.fields[i], h.fields[i + 1]) end
end
redis.call('XACK', stream, group, id)
redis.call('ZREM', due, id)
redis.call('HDEL', tries, id)
return 'settled'
