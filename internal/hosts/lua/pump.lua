-- pump.lua follows host.lua. It reserves free permits for waiters. Returns as enter.lua, with an empty reason.

local woken = {}
serve(woken)
schedule()
return reply('', credential(ARGV[4]), woken)
