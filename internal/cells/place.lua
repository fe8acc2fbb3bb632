-- place.lua changes overrides of repositories. Each is changed only if it is as the caller expects.
--
-- KEYS    1 overrides (hash)   2 epoch (string)   3 log (stream)
-- ARGV    1 entries that the log keeps
--         2… triples: key of a repository, its override or '' if there is none, the new override or '' to delete it
-- Returns how many overrides are neither the expected nor the new one.
-- Fails with WRONGTYPE if a key has another type, and if the log is ahead of the epoch, without changing anything.

local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
local lines, todo, refused = {}, {}, 0
for i = 2, #ARGV, 3 do
  local current = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  if current == ARGV[i + 1] and current ~= ARGV[i + 2] then
    lines[#lines + 1] = ARGV[i] .. ' ' .. ARGV[i + 2]
    todo[#todo + 1] = i
  elseif current ~= ARGV[i + 2] then
    refused = refused + 1
  end
end
if #todo > 0 then
  epoch = epoch + 1
  local text = string.format('%.0f', epoch)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[1], text .. '-0', 'places', table.concat(lines, '\n'))
  redis.call('SET', KEYS[2], text)
  for _, i in ipairs(todo) do
    if ARGV[i + 2] == '' then
      redis.call('HDEL', KEYS[1], ARGV[i])
    else
      redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    end
  end
end
return refused
